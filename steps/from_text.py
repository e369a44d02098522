"""Which pipelines draw from a text alone, as far as the names of their classes tell: planning asks no diffusers.

One whose name says nothing is taken to do so. Once it is loaded, its call tells more (`pipeline.load`).
"""

import re
from collections.abc import Mapping

NAME_AN_IMAGE_MODEL = "Name a model of images"
# In this order: a video pipeline may start from a picture too.
UNSUPPORTED_CLASSES: Mapping[str, str] = {
    r"Video|Vid|Animat|ToWorld|[IT]2V|^Wan|^LTX|^Mochi|^Allegro|^Latte|^Helios|^SkyReels|^Cosmos(?!2TextToImage)"
    r"|^Consis|^Chrono|^AnyFlow|^PIA|^SanaWM": f"makes videos. {NAME_AN_IMAGE_MODEL}",
    r"Audio|Music|^AceStep|^Dance": f"makes sounds. {NAME_AN_IMAGE_MODEL}",
    r"DiffusionGemma|^LLaDA|^ShapE|Protein": f"makes no images. {NAME_AN_IMAGE_MODEL}",
    r"^(DDIM|DDPM|PNDM|LDM|DiT|ScoreSdeVe|KarrasVe|ConsistencyModel|VersatileDiffusion)Pipeline": (
        "reads no text. Name a model that does"
    ),
    r"Prior(?!.*Redux)|Decoder|^Kandinsky(V22)?Pipeline|^IFPipeline": (
        "is one stage of a model that draws in several. Name a model of one stage"
    ),
    r"^Kandinsky(V22)?CombinedPipeline": (
        "draws in several stages, and a row's sampler would reach none of them. Name a model of one stage"
    ),
    r"Img2Img|I2I|Edit(?!ing)|Pix2Pix|In[Pp]aint|RePaint|PaintBy|Fill|Redux|Variation|Upscal|Super|Refiner|SRPipe|Depth"
    r"|Blip|^Cycle|DualGuided|^Marigold|Layered|^VisualCloze|Control|Adapter|AttendAndExcite": (
        "draws from more than a text. Name a model that needs no more"
    ),
}


def unsupported_reason(pipeline: str) -> str | None:
    """Why a class of pipelines, by its name, draws no images from texts, and what to do; None where nothing says so."""
    return next((why for words, why in UNSUPPORTED_CLASSES.items() if re.search(words, pipeline)), None)

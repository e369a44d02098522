"""Groups of a job's settings, for jobs written in Python.

>>> from imagekiln import Job, ModelSettings
>>> from imagekiln.settings import Jpeg, ShardSettings
>>> job = Job(
...     name="postcards",
...     prompts="prompts.parquet",
...     output="images",
...     model=ModelSettings(id="bundled:shapes", dtype="float32"),
...     encoding=Jpeg(quality=90),
...     shard=ShardSettings(images=500),
... )
>>> job.encoding.quality
90
"""

from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings, LoraSettings
from imagekiln.steps.job.execution import (
    BatchSettings,
    JobLimits,
    PartSettings,
    ShardSettings,
    SpeedSettings,
)
from imagekiln.steps.job.fields import PipelineSettings
from imagekiln.steps.job.gates import GateSettings
from imagekiln.steps.job.job import CardSettings, ClusterSettings, ModelSettings
from imagekiln.steps.job.output import C2paSettings, Jpeg, Png, RunExport, Webp
from imagekiln.steps.job.passes import CaptionPass, RefinePass, UpscalePass
from imagekiln.steps.job.prompts import (
    LanguageModelSettings,
    PromptList,
    PromptSweep,
    PromptTemplate,
    RewriteSettings,
    RunPrompts,
)
from imagekiln.steps.job.rows import ColumnNames, RowDefaults
from imagekiln.steps.job.scores import (
    AestheticScore,
    ClassifierScore,
    ClipScore,
    KeepSettings,
    OwnScore,
    RewardScore,
    SharpnessScore,
)

__all__ = [
    "AestheticScore",
    "BatchSettings",
    "C2paSettings",
    "CaptionPass",
    "CardSettings",
    "ClassifierScore",
    "ClipScore",
    "ClusterSettings",
    "ColumnNames",
    "ControlNetSettings",
    "GateSettings",
    "IpAdapterSettings",
    "JobLimits",
    "Jpeg",
    "KeepSettings",
    "LanguageModelSettings",
    "LoraSettings",
    "ModelSettings",
    "OwnScore",
    "PartSettings",
    "PipelineSettings",
    "Png",
    "PromptList",
    "PromptSweep",
    "PromptTemplate",
    "RefinePass",
    "RewardScore",
    "RewriteSettings",
    "RowDefaults",
    "RunExport",
    "RunPrompts",
    "ShardSettings",
    "SharpnessScore",
    "SpeedSettings",
    "UpscalePass",
    "Webp",
]

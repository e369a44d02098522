"""What a language model made of prompts, and which of it is drawn in their place."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from imagekiln.steps.job.columns import MAX_PROMPT_CHARS
from imagekiln.steps.job.rewrite import RewriteSettings
from imagekiln.steps.runs.rewriting import RewrittenText


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of a job's prompts, and a hash of them."""

    texts: Mapping[str, RewrittenText]
    sha256: str
    appends: bool

    def choose(self, prompt: str | None) -> tuple[str | None, str | None]:
        """The text that is drawn for a prompt, and what became of the prompt.

        A prompt without a text stays, such as that of a row that is rejected.
        """
        rewritten = None if prompt is None else self.texts.get(prompt)
        if prompt is None or rewritten is None:
            return prompt, None
        if rewritten.end == "unread":
            return prompt, "unread"
        if not rewritten.text.strip():
            return prompt, "empty"
        text = prompt + rewritten.text if self.appends else rewritten.text
        text = text.strip()
        if len(text) > MAX_PROMPT_CHARS:
            return prompt, "too_long"
        return text, "cut" if rewritten.end == "cut" else "rewritten"


def gather_texts(settings: RewriteSettings, texts: Mapping[str, RewrittenText]) -> PromptTexts:
    """The texts with their hash, which does not depend on the order of rows."""
    digest = hashlib.sha256()
    for prompt in sorted(texts):
        rewritten = texts[prompt]
        line = json.dumps([prompt, rewritten.text, rewritten.end])
        digest.update(line.encode())
    return PromptTexts(texts, sha256=digest.hexdigest(), appends=settings.append)

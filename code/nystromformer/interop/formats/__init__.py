"""Models as others store them: transformers' folders and the authors' checkpoints, in this project's words."""

from nystromformer.interop.formats.source import Source, is_foreign, open_source

__all__ = ["Source", "is_foreign", "open_source"]

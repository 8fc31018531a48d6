"""Models as others store them: transformers' folders and the authors' checkpoints, in this project's words."""

from nystromformer.interop.formats.source import Head, Source, is_foreign, open_source

__all__ = ["Head", "Source", "is_foreign", "open_source"]

from nystromformer.interop.experiments.open_model import from_pretrained as from_pretrained
from nystromformer.prediction.predictor import Predictor as Predictor

__version__: str

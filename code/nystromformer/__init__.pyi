from nystromformer.exchange.open_model import from_pretrained as from_pretrained
from nystromformer.tasks.prediction.loaded import load_run as load_run
from nystromformer.tasks.prediction.predictor import Predictor as Predictor

__version__: str

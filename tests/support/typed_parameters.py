"""What a type checker says of the attentions' parameters: `make lint` checks this file, in which an error that is not
found is an error. Nothing here is run.
"""

from torch import nn

from nystromformer.interop.drop_in import register
from nystromformer.nn import Encoder, NystromAttention, replace_attention

Encoder(64, 2, 4, num_landmarks=32, conv_kernel_size=33, dropout=0.1)
Encoder(64, 2, 4, attention="longformer", dilation=(1, 2), window=16)
Encoder(64, 2, 4, num_landmark=32)  # type: ignore[call-arg]
Encoder(64, 2, 4, num_landmarks="32")  # type: ignore[arg-type]
NystromAttention(64, 4, landmarks="strided")
NystromAttention(64, 4, landmark="strided")  # type: ignore[call-arg]
replace_attention(nn.MultiheadAttention(64, 4), "sparse", heads="merged", stride=8)
replace_attention(nn.MultiheadAttention(64, 4), num_landmarks=32, pinv_start="batsch")  # type: ignore[arg-type]
replace_attention(nn.MultiheadAttention(64, 4), num_landmrks=32)  # type: ignore[call-arg]
register(num_landmarks=32)
register(num_landmrks=32)  # type: ignore[call-arg]

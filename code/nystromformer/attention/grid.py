"""A row's tokens in blocks of one size, for methods that compute their scores themselves.

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, D head dim. A grid is (B, H, C, S, ·).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.tracing import is_exporting


class Grid:
    """The blocks of rows of N tokens of which the first `lengths_B` count.

    While a program is exported that is to serve every length, one block stands behind the last, and tokens are taken by
    their index: no view asks for a length that blocks divide.

    Args:
        x_BHND: any tensor of the rows, for sizes and device.
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
    """

    def __init__(self, x_BHND: Tensor, lengths_B: Tensor | None, size: int) -> None:
        self.length = x_BHND.shape[2]
        self.size = size
        self.device = x_BHND.device
        self.num_blocks = (self.length + size - 1) // size + (1 if is_exporting() else 0)
        self.ends_B = torch.tensor([self.length], device=self.device) if lengths_B is None else lengths_B
        """Tokens that count, of each row, or of all."""

    def places(self, around: int = 0) -> Tensor:
        """(C, W·S): the places of the tokens of each block and of so many on either side; some are beyond the row."""
        starts_C = (torch.arange(self.num_blocks, device=self.device) - around) * self.size
        return starts_C[:, None] + torch.arange((2 * around + 1) * self.size, device=self.device)

    def tokens(self) -> Tensor:
        """(B or 1, N) bool: which count."""
        return torch.arange(self.length, device=self.device) < self.ends_B[:, None]

    def there(self) -> Tensor:
        """(B or 1, C, S) bool: the places that have a token that counts."""
        return self.places() < self.ends_B[:, None, None]

    def means(self, x_BHND: Tensor) -> Tensor:
        """The means of each block's tokens that count, (B, H, C, D), float32 or wider."""
        there_BCS = self.there()
        x_BHCSD = self.of(x_BHND.to(torch.promote_types(x_BHND.dtype, torch.float32)))
        return (x_BHCSD * there_BCS[:, None, ..., None]).sum(3) / there_BCS.sum(2).clamp(min=1)[:, None, :, None]

    def of(self, x_BHND: Tensor, around: int = 0) -> Tensor:
        """(B, H, C, W·S, D): each block with so many on either side, zeros beyond the N tokens."""
        B, H, N, D = x_BHND.shape
        if is_exporting():
            places = self.places(around)
            inside = ((places >= 0) & (places < N))[..., None]
            return torch.where(inside, x_BHND[:, :, places.clamp(0, N - 1)], 0)
        blocks, size = self.num_blocks, self.size
        # Padding and concatenation are of three sizes: of more, what PyTorch gives differs in its layout from what it
        # expects when it compiles.
        padded_XLD = x_BHND.flatten(0, 1)
        if around or N % size:  # padding by nothing would be a copy
            padded_XLD = F.pad(padded_XLD, (0, 0, around * size, (blocks + around) * size - N))
        if around:
            whole_XCY = padded_XLD.reshape(B * H, blocks + 2 * around, size * D)
            padded_XLD = torch.cat([whole_XCY[:, shift : shift + blocks] for shift in range(2 * around + 1)], dim=2)
        return padded_XLD.reshape(B, H, blocks, -1, D)

    def flat(self, grid_BHCSD: Tensor) -> Tensor:
        """(B, H, N, D), the reverse of `of`."""
        if is_exporting():
            tokens_N = torch.arange(self.length, device=self.device)
            return grid_BHCSD[:, :, tokens_N // self.size, tokens_N % self.size]
        return grid_BHCSD.flatten(2, 3)[:, :, : self.length]

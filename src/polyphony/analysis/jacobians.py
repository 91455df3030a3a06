"""Do a student's members change with their input as their teachers do? Cosines of Jacobians (§4.3)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.linalg import vecdot

from polyphony.data import Split, pixels
from polyphony.ensembles import Ensemble, evaluating
from polyphony.training.fit import Unwatched, Watch


def jacobian_cosines(
    teachers: Ensemble, student: Ensemble, split: Split, *, batch: int = 50, watch: Watch = Unwatched()
) -> Tensor:
    """cos(vec ∂T_j/∂x, vec ∂S_j/∂x) of teacher j and student member j on every image. → [m n]

    T and S are class probabilities (softmax at temperature 1), as the paper writes its networks (§2.1) and
    its Jacobian-matching term (§3.2); x is pixels in [0, 1]. Row k is p_k (∇z_k − Σ_i p_i ∇z_i), so that a
    class counts by how much it can change. Both networks are in eval mode.
    """
    if teachers.members != student.members:
        raise ValueError(f"{teachers.members} teachers cannot be paired with {student.members} members")
    blocks: list[Tensor] = []
    with evaluating(teachers), evaluating(student):
        for images in split.images.split(batch):
            blocks.append(cosines(teachers, student, pixels(images.to(teachers.device))).cpu())
            watch.step(sum(block.shape[1] for block in blocks), len(split), {})
    return torch.cat(blocks, dim=1)


def cosines(teachers: Ensemble, student: Ensemble, x: Tensor) -> Tensor:
    """The same for one batch, both networks in eval mode: K backward passes of each. [b c h w] → [m b]

    The cosine is 0 if a network does not change at all.
    """
    rows = zip(jacobian_rows(teachers, x), jacobian_rows(student, x), strict=True)
    products = [torch.stack([vecdot(t, s), vecdot(t, t), vecdot(s, s)]) for t, s in rows]
    dot, teacher, own = torch.stack(products).sum(0)
    lengths = teacher.sqrt() * own.sqrt()
    cosine: Tensor = dot / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    return cosine.clamp(-1, 1)


def jacobian_rows(ensemble: Ensemble, x: Tensor) -> Iterator[Tensor]:
    """The K rows of every member's Jacobian; all rows of an example times one positive number.

    [b c h w] → K × [m b d] in float64 on the CPU: in float32 the square of 1e-23 is 0. One forward pass, then
    one backward pass a row for all members and examples.
    """
    inputs = x.detach().expand(ensemble.members, *x.shape).contiguous().requires_grad_()
    with torch.enable_grad():
        logits = ensemble(inputs)
    for row in softmax_jacobian(logits.detach().cpu()).unbind(-2):
        (gradient,) = torch.autograd.grad(logits, inputs, row.to(logits), retain_graph=True)
        yield gradient.flatten(2).cpu().double()


def softmax_jacobian(logits: Tensor) -> Tensor:
    """diag(p) − p pᵀ with p = softmax(z), divided by max_{j≠top} p_j. [… k] → [… k k], float64

    Autograd through the softmax takes 1 − p_top as a difference, which is lost for a confident network, and
    all entries may underflow. Here 1 − p_top is the sum of the others' probabilities, and these are relative
    to the largest of them; a cosine does not see that factor.
    """
    z = logits.double()
    p, top = z.softmax(-1), z.argmax(-1, keepdim=True)
    others = z.scatter(-1, top, -torch.inf)
    u = (others - others.amax(-1, keepdim=True)).exp()  # p_j / max_{i≠top} p_i; 0 for the top itself
    rows = u[..., :, None] * p[..., None, :]  # p_i p_j, scaled; right wherever i is not the top
    top_row = top[..., None].expand(*top.shape, p.shape[-1])
    rows = rows.scatter(-2, top_row, (p.gather(-1, top) * u)[..., None, :])
    # Rows of diag(p) − p pᵀ sum to zero, so a diagonal entry is the sum of the others: all of one sign.
    off_diagonal = rows - rows.diagonal(dim1=-2, dim2=-1).diag_embed()
    return off_diagonal.sum(-1).diag_embed() - off_diagonal

"""Compares the Jacobians of members and teachers with respect to the input, by cosines (§4.3)."""

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

    T and S are class probabilities (softmax at temperature 1), as in the paper's notation (§2.1) and its
    Jacobian-matching term (§3.2); x is pixels in [0, 1]. Row k of a Jacobian is p_k (∇z_k − Σ_i p_i ∇z_i), so
    a class counts as much as its probability can change. Both networks run in eval mode. Raises a ValueError
    unless there is a teacher for each member.
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
    """`jacobian_cosines` of one batch, by K backward passes of each network. [b c h w] → [m b]

    The cosine is 0 if a Jacobian is 0.
    """
    rows = zip(jacobian_rows(teachers, x), jacobian_rows(student, x), strict=True)
    products = [torch.stack([vecdot(t, s), vecdot(t, t), vecdot(s, s)]) for t, s in rows]
    dot, teacher_square, student_square = torch.stack(products).sum(0)
    lengths = teacher_square.sqrt() * student_square.sqrt()
    cosine: Tensor = dot / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)
    return cosine.clamp(-1, 1)


def jacobian_rows(ensemble: Ensemble, x: Tensor) -> Iterator[Tensor]:
    """The K rows of every member's Jacobian, up to a positive factor of the example. [b c h w] → K × [m b d]

    Float64 on the CPU: in float32 the square of 1e-23 is 0. It takes one forward pass, and for each row one
    backward pass for all members and examples.
    """
    inputs = x.detach().expand(ensemble.members, *x.shape).contiguous().requires_grad_()
    with torch.enable_grad():
        logits = ensemble(inputs)
    for row in softmax_jacobian(logits.detach().cpu()).unbind(-2):
        (gradient,) = torch.autograd.grad(logits, inputs, row.to(logits), retain_graph=True)
        yield gradient.flatten(2).cpu().double()


def softmax_jacobian(logits: Tensor) -> Tensor:
    """diag(p) − p pᵀ with p = softmax(z), divided by max_{j≠top} p_j. [… k] → [… k k], float64

    Autograd through the softmax computes 1 − p_top as a difference, which cancels for a confident network,
    and all entries may underflow. Here 1 − p_top is the sum of the other probabilities, and these are divided
    by the largest of them. A cosine does not depend on that factor.
    """
    z = logits.double()
    p, top = z.softmax(-1), z.argmax(-1, keepdim=True)
    others = z.scatter(-1, top, -torch.inf)
    u = (others - others.amax(-1, keepdim=True)).exp()  # p_j / max_{i≠top} p_i; 0 for the top itself
    rows = u[..., :, None] * p[..., None, :]  # p_i p_j, scaled; correct if i is not the top
    top_row = top[..., None].expand(*top.shape, p.shape[-1])
    rows = rows.scatter(-2, top_row, (p.gather(-1, top) * u)[..., None, :])
    # Rows of diag(p) − p pᵀ sum to zero: a diagonal entry is the sum of the p_i p_j beside it, all positive.
    off_diagonal = rows - rows.diagonal(dim1=-2, dim2=-1).diag_embed()
    return off_diagonal.sum(-1).diag_embed() - off_diagonal

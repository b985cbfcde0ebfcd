"""What a run costs, computed from shapes: FLOPs of a step with its signals, and memory of a GPU. No verl, no torch.

shapes   sizes of a decoder model
flops    a training step, and what the signals add to it
memory   what stays on a GPU, and the largest passing tensors
"""

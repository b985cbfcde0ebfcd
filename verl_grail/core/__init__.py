"""The papers' mathematics as pure functions of tensors and strings: torch and a tokenizer, no verl, no ray.

Notation used throughout (SPEC of the two papers): B sequences, T response tokens, d hidden size, V vocabulary,
``y_t`` response token, ``e_t`` its input embedding, ``h_t`` the last hidden state (after the final norm) that predicts
``y_t``, ``W`` (V, d) the output layer, ``tau`` the sampling temperature.
"""

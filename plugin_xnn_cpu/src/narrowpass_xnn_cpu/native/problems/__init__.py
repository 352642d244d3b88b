"""Problems: frozen descriptions of what is to be computed, which never touch the native library.

Sizes are in elements, and inputs and outputs are dense: [N, H, W, C] for images, rows of channels
otherwise. `native.table` selects the kernel of a problem.
"""

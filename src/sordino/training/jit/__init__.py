"""Kernels compiled on the machine they run on, for float32 on a processor.

A library's convolution must serve every shape; per-example gradients of many small images
are a shape it does not serve well (patches are copied, small products are called one by
one, and at ten examples a step the calls themselves cost as much as the arithmetic). Here
a convolution is a walk of one *register tile* over the image in place: no patches, no copies.

    emit    primitives of the compiler's intermediate language, in which inner loops are written
    tile    the inner loops of convolutions and pools
    conv    forward, gradient by the input, gradient of every example
    pool    max pooling, forward and back

A linear layer by itself is less arithmetic than the calls around it; there the whole of it is one
call:

    rows    tiles of a matrix whose rows are examples, bytes or floats, where they lie in a store
    linear  scores, slopes of the loss, norms and clipped sum

Gradients that are written out, an example in each row, and added up:

    turn      transposes of small matrices
    weighted  weighted sums of rows, in float64

Everything here takes and returns NumPy arrays, and knows nothing of modules or privacy.
"""

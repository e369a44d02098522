# The lock for a build of PyTorch that is not PyPI's: without the CUDA libraries and Triton, which it brings in versions of
# its own, and without the hashes of torch and torchao, whose files are others. Everything else keeps version and hashes.
/^[^ ]/ { omitted = /^(cuda|nvidia|triton)/; bare = /^torch/ }
bare && /^ +--hash/ { next }
bare { sub(/ \\$/, "") }
!omitted

"""What the matrix and the reproduction report share: digests of code, results on disk, seeds, intervals, processes."""

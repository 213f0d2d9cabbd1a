"""What every room stands on: errors, files, memory, precision, progress, processes."""

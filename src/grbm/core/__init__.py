"""Basic modules: errors, options, random numbers, files, devices, memory, processes."""

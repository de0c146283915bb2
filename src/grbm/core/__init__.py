"""What everything stands on: errors, options, random numbers, files, devices, memory, processes."""

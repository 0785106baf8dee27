"""Methods: one file for each published algorithm; pure rules without I/O or clocks."""

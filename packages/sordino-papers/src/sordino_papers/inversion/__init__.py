"""Images from gradients: ``sordino audit --attack inversion``."""

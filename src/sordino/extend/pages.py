"""Pictures and pages, as reports have them."""

from sordino.privacy.rounding import epsilon_text as epsilon_text
from sordino.report import words as words
from sordino.report import write as write
from sordino.report.album import Picture as Picture
from sordino.report.album import markup as markup
from sordino.report.axes import logarithmic as logarithmic
from sordino.report.axes import of_percent as of_percent
from sordino.report.band import Band as Band
from sordino.report.band import band as band
from sordino.report.canvas import INK as INK
from sordino.report.canvas import QUIET as QUIET
from sordino.report.canvas import SERIES as SERIES
from sordino.report.canvas import canvas as canvas
from sordino.report.canvas import clean as clean
from sordino.report.canvas import figure as figure
from sordino.report.canvas import shortened as shortened
from sordino.report.canvas import svg as svg
from sordino.report.page import template as template
from sordino.report.studies import Table as Table

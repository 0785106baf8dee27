"""Pictures and pages, as reports have them."""

from sordino.core.statements import Figure as Figure
from sordino.core.statements import Panel as Panel
from sordino.core.statements import Series as Series
from sordino.core.statements import look as look
from sordino.privacy.rounding import epsilon_text as epsilon_text
from sordino.report import words as words
from sordino.report import write as write
from sordino.report.canvas import INK as INK
from sordino.report.canvas import QUIET as QUIET
from sordino.report.canvas import canvas as canvas
from sordino.report.canvas import clean as clean
from sordino.report.canvas import figure as figure
from sordino.report.canvas import svg as svg
from sordino.report.comparisons import Table as Table
from sordino.report.curves import Band as Band
from sordino.report.curves import band as band
from sordino.report.page import Picture as Picture
from sordino.report.page import picture_of as picture_of
from sordino.report.page import template as template

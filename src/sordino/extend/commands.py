"""For a command of its own: what it says, and its options. Loading this loads nothing heavy."""

from sordino.base.errors import SordinoError as SordinoError
from sordino.base.errors import StudyError as StudyError
from sordino.base.errors import did_you_mean as did_you_mean
from sordino.cli import say as say
from sordino.cli.audit import AttackOptions as AttackOptions
from sordino.cli.run import AsJson as AsJson
from sordino.cli.run import Set as Set
from sordino.cli.run import StudyFile as StudyFile

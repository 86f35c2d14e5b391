"""``python -m redrive.settings > docs/configuration.md``."""

import sys

from redrive.settings.page import configuration_page

sys.stdout.write(configuration_page())

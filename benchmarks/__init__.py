"""Comparisons and costs, run by ``make bench``. Figures are measured when it runs, never kept here."""

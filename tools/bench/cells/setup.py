"""The content of every chapter's setup cell."""

import torch  # noqa: F401 as every chapter does

from course_utils import describe

describe()

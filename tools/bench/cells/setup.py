"""What every chapter's setup cell does."""

import torch  # noqa: F401 as every chapter does

from course_utils import describe

describe()

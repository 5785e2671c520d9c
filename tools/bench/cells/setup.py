"""What every chapter's setup cell does."""

import torch
from course_utils import describe

describe()

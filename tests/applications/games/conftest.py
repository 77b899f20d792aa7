"""Fixtures that make the pictures of reports cheap."""

from pictures import blank_pictures as blank_pictures
from pictures import small_pictures as small_pictures

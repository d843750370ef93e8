"""Images: `image_file` reads the facts of an image file, checks that its pixels decode, and decodes them to RGB."""

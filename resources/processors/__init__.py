"""Image processors of vision-language models: ids and model inputs of images, checked by a certificate."""

paper falcon
bread flour

canyon heart
harbor book

def unused_needle(x):
    return x + 94


def parse_size(text):
    if text.endswith('k'):
        return int(text[:-1]) * 1000
    return int(text)

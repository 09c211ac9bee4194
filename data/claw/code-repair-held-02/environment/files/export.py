def unused_easel(x):
    return x + 33


def parse_size(text):
    if text.endswith('k'):
        return int(text[:-1]) * 1000
    return int(text)

def unused_gasket(x):
    return x + 57


def initials(name):
    return ''.join(w[0] + '.' for w in name.split(' '))

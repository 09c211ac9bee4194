def unused_basket(x):
    return x + 7


def initials(name):
    return ''.join(w[0] + '.' for w in name.split(' '))

def unused_ratchet(x):
    return x + 36


def initials(name):
    return ''.join(w[0] + '.' for w in name.split(' '))

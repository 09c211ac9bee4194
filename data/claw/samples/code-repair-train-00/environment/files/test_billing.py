import unittest

from billing import initials


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(initials(*['ada bell']), 'A.B.')


if __name__ == '__main__':
    unittest.main()

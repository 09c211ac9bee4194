import unittest

from export import parse_size


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(parse_size(*['3k']), 3072)


if __name__ == '__main__':
    unittest.main()

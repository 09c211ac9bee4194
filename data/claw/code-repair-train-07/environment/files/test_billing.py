import unittest

from billing import median


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(median(*[[1, 2, 3, 4]]), 2.5)


if __name__ == '__main__':
    unittest.main()

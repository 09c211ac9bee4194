import unittest

from mail import late_fee


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(late_fee(*[-3]), 0)


if __name__ == '__main__':
    unittest.main()

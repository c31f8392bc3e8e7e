"""What a cron expression means, in words."""

import pytest

from treadle.errors import ConfigError
from treadle.schedules.words import explain

WORDS = [
    ("* * * * *", "every minute"),
    ("*/15 * * * *", "every 15 minutes"),
    ("0-59/15 0-23 * * *", "every 15 minutes"),
    ("@hourly", "every hour"),
    ("@daily", "at 00:00 every day"),
    ("@weekly", "at 00:00 on Sunday"),
    ("@monthly", "at 00:00 on day 1 of the month"),
    ("@yearly", "at 00:00 on day 1 of the month in January"),
    ("30 2 * * *", "at 02:30 every day"),
    ("0 9,17 * * *", "at 09:00 and 17:00 every day"),
    ("0 9 * * 1#2", "at 09:00 on the second Monday of the month"),
    ("0 9 * * 5L", "at 09:00 on the last Friday of the month"),
    ("0 9 L * *", "at 09:00 on the last day of the month"),
    ("30 17 LW * *", "at 17:30 on the last weekday, Monday to Friday, of the month"),
    ("0 9 * * MON#1,MON#3", "at 09:00 on the first Monday and the third Monday of the month"),
    ("0 9 1,L * FRI#5,MONL", "at 09:00 on day 1 and the last day of the month, and also on the fifth Friday and the "
     "last Monday of the month"),
    ("0 9 * * 1,3,5", "at 09:00 on Monday, Wednesday and Friday"),
    ("0 9 * * 1-5", "at 09:00, Monday to Friday"),
    ("0 6 * * 5-7", "at 06:00, Friday to Sunday"),
    ("0 6 * * SAT,SUN", "at 06:00 on Saturday and Sunday"),
    ("*/15 9-17 * * MON-FRI", "every 15 minutes from 09:00 to 17:59, Monday to Friday"),
    ("* 2 * * *", "every minute from 02:00 to 02:59"),
    ("*/10 8,20 * * *", "every 10 minutes of the hours 8 and 20"),
    ("0 */2 * * *", "every 2 hours, from 00:00 on"),
    ("0 8-18 * * *", "every hour from 08:00 to 18:00"),
    ("30 8-18 * * *", "at minute 30 of the hours 8 to 18 every day"),
    ("15,45 * * 6 *", "at minutes 15 and 45 of every hour in June"),
    ("0 9 1,15 JAN-MAR *", "at 09:00 on days 1 and 15 of the month, from January to March"),
    ("0 0 13 * FRI", "at 00:00 on day 13 of the month, and also on Friday"),
    ("0 9 */100,1-7 * MON", "at 09:00 on Monday, if it falls on days 1 to 7 of the month"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "words"), WORDS, ids=lambda text: text[:30])
def test_an_expression_is_told_in_words(expression, words):
    assert explain(expression) == words


def test_what_cannot_be_read_is_refused_as_everywhere():
    with pytest.raises(ConfigError, match="minute: '61' is out of range"):
        explain("61 * * * *")

"""The admin: it shows jobs and queues to those who may look, acts for those who may act, and edits nothing."""

from django.contrib.auth.models import Permission, User
from django.test import TestCase
from shop import tasks

from treadle import EventKind, State
from treadle.integrations.django import app
from treadle.integrations.django.test import TreadleTestMixin

JOBS, QUEUES = "/admin/treadle/job/", "/admin/treadle/queue/"


class AdminTests(TreadleTestMixin, TestCase):
    @classmethod
    def setUpTestData(cls):
        User.objects.create_superuser("ada", "ada@example.org", "pw")
        looker = User.objects.create_user("bob", password="pw", is_staff=True)
        looks = Permission.objects.filter(codename__startswith="view_", content_type__app_label="treadle")
        looker.user_permissions.set(looks)
        User.objects.create_user("eve", password="pw", is_staff=True)
        cls.failed = tasks.fail.using(key="order-7").enqueue("<no> paper")
        cls.waiting = tasks.count_orders.enqueue()

    def setUp(self):
        self.client.login(username="ada", password="pw")

    def fail_the_first(self):
        self.run_jobs(queues=["default"])

    def test_the_index_leads_to_jobs_and_queues_and_adds_nothing(self):
        page = self.client.get("/admin/")
        self.assertContains(page, f'href="{JOBS}"')
        self.assertContains(page, f'href="{QUEUES}"')
        self.assertNotContains(page, "/admin/treadle/job/add/")
        for path in ("add/", f"{self.waiting.id}/delete/", f"{self.waiting.id}/history/"):
            self.assertEqual(self.client.get(JOBS + path).status_code, 404, path)

    def test_the_list_is_filtered_by_state_task_and_queue(self):
        self.fail_the_first()
        for query, shown in {
            "": {self.failed, self.waiting},
            "?state=failed": {self.failed},
            "?state=pending": {self.waiting},
            "?task=fail": {self.failed},
            "?queue=mail": {self.waiting},
            "?queue=mail&task=fail": set(),
        }.items():
            with self.subTest(query):
                page = self.client.get(JOBS + query)
                for job in (self.failed, self.waiting):
                    (self.assertContains if job in shown else self.assertNotContains)(page, job.id)

    def test_a_job_is_found_by_id_and_by_key(self):
        for search in (self.failed.id, self.failed.id.upper(), "order-7"):
            page = self.client.get(JOBS, {"q": search})
            self.assertContains(page, f"{JOBS}{self.failed.id}/")
            self.assertNotContains(page, self.waiting.id)
        self.assertContains(self.client.get(JOBS, {"q": "nothing"}), "No job has this id or key")

    def test_a_job_is_found_by_the_first_digits_of_its_id(self):
        whole = self.failed.id
        own = next(end for end in range(4, 37) if not self.waiting.id.startswith(whole[:end]))
        for search in (whole[:own], whole[:-1].upper(), whole.replace("-", ""), whole.replace("-", "")[:-3]):
            with self.subTest(search):
                page = self.client.get(JOBS, {"q": search})
                self.assertContains(page, f"{JOBS}{whole}/")
                self.assertNotContains(page, self.waiting.id)
        both = self.client.get(JOBS, {"q": whole[:4]})  # jobs of one day begin alike
        self.assertContains(both, f"{JOBS}{whole}/")
        self.assertContains(both, f"{JOBS}{self.waiting.id}/")
        for search in (whole[:3], "00000000", "0000-", "x" + whole[:8], whole + "0"):
            self.assertContains(self.client.get(JOBS, {"q": search}), "No job has this id or key")

    def test_a_key_that_looks_like_the_digits_of_an_id_is_found_first(self):
        keyed = tasks.fail.using(key=self.waiting.id[:6]).enqueue("later")
        page = self.client.get(JOBS, {"q": keyed.key}).content.decode()
        self.assertLess(page.index(f"{JOBS}{keyed.id}/"), page.index(f"{JOBS}{self.waiting.id}/"))
        self.assertEqual(page.count(f"{JOBS}{keyed.id}/"), 1)

    def test_a_search_that_finds_too_many_says_so(self):
        app.tasks["fail"].enqueue_many([("no",)] * 60)
        newest = app.find(limit=1).jobs[0]
        page = self.client.get(JOBS, {"q": self.failed.id[:4]})
        self.assertContains(page, "50 jobs")
        self.assertContains(page, "There are more: search for more digits.")
        self.assertContains(page, newest.id)
        self.assertNotContains(self.client.get(JOBS, {"q": self.failed.id}), "There are more")

    def test_a_long_list_goes_on_page_by_page(self):
        tasks.add.get_backend()
        app.tasks["shop.tasks.add"].enqueue_many([{"args": [number], "kwargs": {}} for number in range(60)])
        first = self.client.get(JOBS)
        self.assertContains(first, "50 jobs")
        [next_page] = [link for link in first.content.decode().split('"') if "cursor=" in link]
        self.assertContains(self.client.get(JOBS + next_page.replace("&amp;", "&")), "12 jobs")

    def test_a_job_shows_its_payload_error_traceback_and_history(self):
        self.fail_the_first()
        page = self.client.get(f"{JOBS}{self.failed.id}/")
        for text in ("&lt;no&gt; paper", "LookupError", "raise LookupError(message)", "failed", "order-7"):
            self.assertContains(page, text)
        self.assertNotContains(page, "<no> paper")

    def test_a_failed_job_is_retried_in_the_name_of_the_user(self):
        self.fail_the_first()
        page = self.client.post(f"{JOBS}{self.failed.id}/", {"act": "retry", "reason": "paper is back"}, follow=True)
        self.assertContains(page, "is retrying now" if app.get(self.failed.id).failures else "is pending now")
        event = app.events(self.failed.id)[-1]
        self.assertEqual((event.kind, event.actor, event.note), (EventKind.RETRIED, "admin:ada", "paper is back"))

    def test_several_jobs_are_cancelled_from_the_list_and_what_cannot_be_is_said(self):
        self.fail_the_first()
        answer = {"act": "cancel", "job": [self.failed.id, self.waiting.id]}
        page = self.client.post(JOBS, answer, follow=True)
        self.assertEqual(app.get(self.waiting.id).state, State.CANCELLED)
        self.assertEqual(app.get(self.failed.id).state, State.FAILED)
        self.assertContains(page, self.failed.id + ":")

    def test_an_unknown_job_leads_back_to_the_list(self):
        page = self.client.get(f"{JOBS}00000000-0000-7000-8000-000000000000/", follow=True)
        self.assertRedirects(page, JOBS)

    def test_a_bad_filter_is_an_answer_and_no_crash(self):
        self.assertContains(self.client.get(JOBS + "?state=nonsense"), "must be one of")
        self.assertContains(self.client.get(JOBS + "?cursor=nonsense"), "not a valid cursor")

    def test_a_queue_is_paused_and_resumed(self):
        page = self.client.post(QUEUES, {"act": "pause", "queue": "mail", "reason": "outage"}, follow=True)
        self.assertContains(page, "Queue mail is paused")
        self.assertContains(page, "by admin:ada: outage")
        [pause] = app.pauses()
        self.assertEqual((pause.queue, pause.actor), ("mail", "admin:ada"))
        self.client.post(QUEUES, {"act": "resume", "queue": "mail"})
        self.assertEqual(app.pauses(), [])
        page = self.client.post(QUEUES, {"act": "resume", "queue": "mail"}, follow=True)
        self.assertContains(page, "is not paused by itself")

    def test_who_may_look_may_not_act(self):
        self.client.login(username="bob", password="pw")
        for path in (JOBS, QUEUES, f"{JOBS}{self.waiting.id}/"):
            page = self.client.get(path)
            self.assertEqual(page.status_code, 200)
            self.assertNotContains(page, 'name="act"')
            self.assertEqual(self.client.post(path, {"act": "cancel", "queue": "mail"}).status_code, 403)
        self.assertEqual(app.get(self.waiting.id).state, State.PENDING)

    def test_who_may_not_look_sees_nothing(self):
        self.client.login(username="eve", password="pw")
        for path in (JOBS, QUEUES, f"{JOBS}{self.waiting.id}/"):
            self.assertEqual(self.client.get(path).status_code, 403)
        self.assertNotContains(self.client.get("/admin/"), JOBS)

    def test_a_form_of_another_site_is_refused(self):
        from django.test import Client

        stranger = Client(enforce_csrf_checks=True)
        stranger.login(username="ada", password="pw")
        self.assertEqual(stranger.post(JOBS, {"act": "cancel", "job": [self.waiting.id]}).status_code, 403)

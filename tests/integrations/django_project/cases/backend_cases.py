"""The TASKS backend: the cases with which Django tests its own backends, asked of ours, and what only ours can do."""

import logging
from datetime import datetime, timedelta
from importlib.util import find_spec

from django.core.checks import run_checks
from django.db import transaction
from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone
from shop import tasks
from shop.models import Order

from treadle import State
from treadle.integrations.django import app
from treadle.integrations.django.backend import TreadleBackend
from treadle.integrations.django.test import TreadleTestMixin

if find_spec("django.tasks") is not None:
    from django.tasks import TaskResultStatus, default_task_backend, task_backends
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import logger as task_enqueued_log
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import TaskResultStatus, default_task_backend, task_backends
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import logger as task_enqueued_log
    from django_tasks.signals import task_enqueued, task_finished, task_started


class SettingsTests(SimpleTestCase):
    def test_the_settings_lead_to_our_backend(self):
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIsInstance(task_backends["default"], TreadleBackend)
        self.assertEqual(default_task_backend.alias, "default")
        self.assertEqual(task_backends["stubborn"].options["retry"].max_attempts, 3)

    def test_it_says_what_it_supports(self):
        for name in ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority"):
            self.assertTrue(getattr(default_task_backend, name), name)

    def test_a_worker_serves_the_queues_of_the_settings(self):
        self.assertEqual(app.settings.queues, ["default", "mail"])

    def test_a_project_that_forgot_the_app_is_told(self):
        self.assertEqual(run_checks(), [])
        with override_settings(INSTALLED_APPS=["shop"]):
            [error] = default_task_backend.check()
        self.assertEqual(error.id, "treadle.E001")
        self.assertIn("INSTALLED_APPS", error.hint)


class EnqueueTests(TreadleTestMixin, TestCase):
    def test_a_task_is_stored_and_ready(self):
        for task in (tasks.add, tasks.add_async):
            with self.subTest(task.name):
                result = task.enqueue(1, b=2)
                self.assertEqual(result.status, TaskResultStatus.READY)
                self.assertFalse(result.is_finished)
                self.assertIsNone(result.started_at)
                self.assertIsNone(result.last_attempted_at)
                self.assertIsNone(result.finished_at)
                self.assertIsNotNone(result.enqueued_at)
                with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                    result.return_value  # noqa: B018
                self.assertEqual((result.task, result.args, result.kwargs), (task, [1], {"b": 2}))
                self.assertEqual((result.attempts, result.errors, result.backend), (0, [], "default"))

    async def test_async_code_enqueues_and_reads_results(self):
        for task in (tasks.add, tasks.add_async):
            with self.subTest(task.name):
                result = await task.aenqueue(1, b=2)
                self.assertEqual(result.status, TaskResultStatus.READY)
                self.assertEqual(await default_task_backend.aget_result(result.id), result)
                self.assertEqual(await task.aget_result(result.id), result)
                await self.arun_jobs()
                await result.arefresh()
                self.assertEqual(result.return_value, 3)

    def test_a_result_can_be_read_again(self):
        result = tasks.noop.enqueue(1, two=3)
        self.assertEqual(default_task_backend.get_result(result.id), result)
        self.assertEqual(tasks.noop.get_result(result.id), result)

    def test_a_result_is_refreshed_in_place(self):
        result = tasks.add.enqueue(2, 3)
        self.run_jobs()
        self.assertEqual(result.status, TaskResultStatus.READY)
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 5))
        self.assertTrue(result.is_finished)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(result.last_attempted_at, result.started_at)
        self.assertEqual(result.attempts, 1)

    def test_a_result_that_is_not_there_is_said_so(self):
        for id in ("123", "00000000-0000-7000-8000-000000000000"):
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(id)

    def test_a_job_that_is_no_task_of_djangos_has_no_result(self):
        job = tasks.fail.enqueue()
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(job.id)

    def test_a_result_of_another_task_is_refused(self):
        with self.assertRaises(TaskResultMismatch):
            tasks.add.get_result(tasks.noop.enqueue().id)

    def test_priority_queue_and_time_reach_the_job(self):
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(priority=-3, queue_name="mail", run_after=later).enqueue(1)
        job = app.get(result.id)
        self.assertEqual((job.priority, job.queue, job.due_at), (-3, "mail", later))
        again = default_task_backend.get_result(result.id).task
        self.assertEqual((again.priority, again.queue_name, again.run_after), (-3, "mail", later))
        self.assertEqual(self.run_jobs(), [])

    def test_what_is_urgent_runs_first(self):
        calm, urgent = tasks.add.enqueue(1), tasks.add.using(priority=100).enqueue(2)
        self.assertEqual([job.id for job in self.run_jobs()], [urgent.id, calm.id])

    def test_the_declared_priority_and_queue_are_the_defaults(self):
        job = app.get(tasks.noop.enqueue().id)
        self.assertEqual((job.priority, job.queue, job.task), (7, "mail", "shop.tasks.noop"))

    def test_it_is_part_of_the_open_block(self):
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            self.assertEqual(default_task_backend.get_result(result.id), result)
            transaction.set_rollback(True)
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()

    def test_arguments_that_are_no_json_are_refused_at_once(self):
        for value in (object(), timezone.now(), {1, 2}, Order()):
            with self.subTest(value), self.assertRaisesMessage(TypeError, "Unsupported type"):
                tasks.add.enqueue(value)
        self.assertEqual(self.jobs(), [])

    def test_arguments_are_as_they_were_when_they_were_given(self):
        given = [1]
        result = tasks.noop.enqueue(given, (1, 2), bytes=b"x")
        given.append(2)
        self.assertEqual((result.args, result.kwargs), ([[1], [1, 2]], {"bytes": "x"}))
        self.assertEqual(default_task_backend.get_result(result.id), result)

    def test_it_logs_and_signals_what_is_enqueued(self):
        seen = []

        def receive(sender, task_result, **_):
            seen.append((sender, task_result.id))

        task_enqueued.connect(receive)
        self.addCleanup(task_enqueued.disconnect, receive)
        with self.assertLogs(task_enqueued_log, level="DEBUG") as logs:
            result = tasks.add.enqueue(1)
        self.assertEqual(seen, [(TreadleBackend, result.id)])
        self.assertTrue(any("enqueued" in line and result.id in line for line in logs.output), logs.output)


class RunTests(TreadleTestMixin, TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)  # Django logs each failure
        self.addCleanup(logging.disable, logging.NOTSET)

    def ended(self, result):
        self.run_jobs()
        result.refresh()
        return result

    def test_a_failure_has_its_class_and_its_traceback(self):
        for task, arguments in ((tasks.fail_with, ["value"]), (tasks.fail_async, [])):
            with self.subTest(task.name):
                result = self.ended(task.enqueue(*arguments))
                self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, 1))
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    result.return_value  # noqa: B018
                [error] = result.errors
                self.assertIs(error.exception_class, ValueError)
                self.assertIn("raise", error.traceback)
                self.assertTrue(error.traceback.strip().endswith("ValueError: it was wrong"))
                self.assertIsNotNone(result.finished_at)

    def test_an_exception_of_ones_own_is_found_by_its_path(self):
        [error] = self.ended(tasks.fail_with.enqueue("own")).errors
        self.assertEqual(error.exception_class_path, "shop.tasks.Unprintable")
        self.assertIs(error.exception_class, tasks.Unprintable)

    def test_a_result_that_is_no_json_is_a_failure(self):
        result = self.ended(tasks.returns_odd.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[0].exception_class, TypeError)
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_a_task_is_given_its_context(self):
        result = tasks.attempt.enqueue()
        self.assertEqual(self.ended(result).return_value, [1, result.id, "RUNNING"])
        self.assertEqual(self.ended(tasks.attempt_async.enqueue(plus=10)).return_value, 11)

    def test_queries_of_a_task_see_the_rows_of_the_test(self):
        Order.objects.create(email="ada@example.org")
        self.assertEqual(self.ended(tasks.order_count.enqueue()).return_value, 1)

    def test_it_runs_once_unless_the_options_say_otherwise(self):
        self.assertEqual(app.get(tasks.add.enqueue(1).id).max_attempts, 1)
        result = self.ended(tasks.third_time_lucky.enqueue())
        self.assertEqual((result.return_value, result.attempts, result.backend), (3, 3, "stubborn"))
        self.assertEqual(len(result.worker_ids), 3)

    def test_a_cancelled_task_has_failed(self):
        result = tasks.add.enqueue(1)
        app.cancel(result.id)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual(result.errors[0].exception_class.__name__, "Cancelled")

    def test_signals_tell_of_the_start_and_of_one_end(self):
        seen = []

        def start(sender, task_result, **_):
            seen.append(("started", task_result.id, task_result.status.value))

        def finish(sender, task_result, **_):
            seen.append(("finished", task_result.id, task_result.status.value))

        for signal, receiver in ((task_started, start), (task_finished, finish)):
            signal.connect(receiver)
            self.addCleanup(signal.disconnect, receiver)
        good, bad, third = tasks.add.enqueue(1), tasks.fail_with.enqueue("value"), tasks.third_time_lucky.enqueue()
        logging.disable(logging.NOTSET)
        with self.assertLogs(level="INFO") as logs:
            self.run_jobs()
        self.assertEqual([one[2] for one in seen if one[1] == good.id], ["RUNNING", "SUCCESSFUL"])
        self.assertEqual([one[2] for one in seen if one[1] == bad.id], ["RUNNING", "FAILED"])
        self.assertEqual([one[0] for one in seen if one[1] == third.id], ["started"] * 3 + ["finished"])
        self.assertTrue(any(line.startswith("ERROR") and bad.id in line for line in logs.output), logs.output)


class ValidationTests(SimpleTestCase):
    def test_a_task_of_a_queue_that_is_not_named_is_refused(self):
        with self.assertRaisesMessage(InvalidTask, "Queue 'unknown' is not valid for backend"):
            tasks.add.using(queue_name="unknown")
        self.assertEqual(tasks.third_time_lucky.using(queue_name="any").queue_name, "any")

    def test_a_priority_outside_djangos_range_is_refused(self):
        for priority in (-101, 101, 3.1):
            with self.subTest(priority), self.assertRaises(InvalidTask):
                tasks.add.using(priority=priority)

    def test_a_naive_time_is_refused(self):
        with self.assertRaisesMessage(InvalidTask, "run_after must be an aware datetime"):
            tasks.add.using(run_after=datetime(2030, 1, 1))

    def test_a_function_inside_a_function_is_refused(self):
        from shop.tasks import task

        with self.assertRaisesMessage(InvalidTask, "module level"):

            @task()
            def inner():
                pass

    def test_a_context_that_is_not_the_first_argument_is_refused(self):
        from shop.tasks import task

        with self.assertRaisesMessage(InvalidTask, "first argument of 'context'"):
            task(takes_context=True)(datetime_of)


def datetime_of():
    return None


@override_settings(USE_TZ=False)
class NaiveTimesTests(TreadleTestMixin, TestCase):
    def test_a_project_without_time_zones_reads_and_writes_naive_times(self):
        later = datetime.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1)
        self.assertIsNone(result.enqueued_at.tzinfo)
        self.assertEqual(default_task_backend.get_result(result.id).task.run_after, later)
        self.assertEqual(app.get(result.id).state, State.PENDING)

"""One view: an order and its mail, together or not at all."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from bookshop.models import Order
from bookshop.tasks import confirm_order


@csrf_exempt  # so that curl can try it
@require_POST
def buy(request: HttpRequest) -> JsonResponse:
    """Store the order; the job to confirm it is part of the same transaction."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], title=request.POST["title"])
        job = confirm_order.enqueue(order.pk)
        if order.title == "sold out":
            transaction.set_rollback(True)  # takes the job along
            return JsonResponse({"error": "sold out"}, status=409)
    return JsonResponse({"order": order.pk, "job": job.id}, status=201)

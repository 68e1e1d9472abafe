from django.urls import path

from scheduler.api import views

urlpatterns = [
    path("schedules", views.ScheduleList.as_view()),
    path("schedules/preview", views.Preview.as_view()),
    path("schedules/<uuid:schedule_id>", views.ScheduleDetail.as_view()),
    path("schedules/<uuid:schedule_id>/preview", views.SchedulePreview.as_view()),
    path("schedules/<uuid:schedule_id>/pause", views.SchedulePause.as_view()),
    path("schedules/<uuid:schedule_id>/resume", views.ScheduleResume.as_view()),
    path("schedules/<uuid:schedule_id>/run", views.ScheduleRunNow.as_view()),
    path("schedules/<uuid:schedule_id>/runs", views.RunList.as_view()),
]

-- A schedule has an id of its own, a UUID: kept over changes, and another one for a later schedule of the same name.
alter table treadle_schedules add column own_id text;
update treadle_schedules set own_id = lower(
    hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8'
    || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))
);
create unique index treadle_schedules_own_id on treadle_schedules (own_id);

-- A schedule has an id of its own: kept over changes, and another one for a later schedule of the same name.

alter table @.schedules add column own_id uuid default gen_random_uuid();
create unique index schedules_own_id on @.schedules (own_id);
comment on column @.schedules.own_id is 'Its id. The name is unique within a tenant, this everywhere.';

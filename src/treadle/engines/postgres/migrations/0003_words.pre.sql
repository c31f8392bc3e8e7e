-- The columns say the words of the code: an event has a kind, a seal counts events.

alter table @.events rename column what to kind;
alter table @.seals rename column lines to events;

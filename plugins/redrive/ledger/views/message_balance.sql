-- Does it all add up? One row per route; every column named *_difference must be 0.
-- copies_difference: recorded copies that are neither loaded as something nor waiting to be loaded.
-- messages_difference: messages that no new copy accounts for (or the reverse).
create view message_balance as
with batches as (
    select
        route,
        sum(case when state in ('recorded', 'settled') then copies else 0 end) as recorded,
        sum(case when state in ('recorded', 'settled') and loaded_at is null then copies else 0 end) as staged,
        sum(case when state in ('recorded', 'settled') then settled_copies else 0 end) as settled,
        sum(new_copies) as new,
        sum(returned_copies) as returned,
        sum(duplicate_copies) as duplicate,
        sum(surplus_copies) as surplus,
        sum(suspected_copies) as suspected
    from staging_batches
    group by route
),

states as (
    select
        route,
        count(*) as messages,
        sum(case when state = 'classified' then 1 else 0 end) as classified,
        sum(case when state = 'waiting' then 1 else 0 end) as waiting,
        sum(case when state = 'held' then 1 else 0 end) as held,
        sum(case when state = 'sending' then 1 else 0 end) as sending,
        sum(case when state = 'sent' then 1 else 0 end) as sent,
        sum(case when state = 'unknown' then 1 else 0 end) as unknown,
        sum(case when state = 'presumed' then 1 else 0 end) as presumed,
        sum(case when state = 'confirmed' then 1 else 0 end) as confirmed,
        sum(case when state = 'suppressed' then 1 else 0 end) as suppressed,
        sum(case when state = 'escalated' then 1 else 0 end) as escalated,
        sum(case when state = 'to_review' then 1 else 0 end) as to_review,
        sum(case when state = 'restoring' then 1 else 0 end) as restoring,
        sum(case when state = 'restore_unknown' then 1 else 0 end) as restore_unknown,
        sum(case when state = 'discarded' then 1 else 0 end) as discarded,
        sum(case when state = 'expired' then 1 else 0 end) as expired
    from messages
    group by route
),

routes as (
    select route from batches
    union
    select route from states
)

select
    routes.route,
    coalesce(recorded, 0) as recorded,
    coalesce(new, 0) as new,
    coalesce(returned, 0) as returned,
    coalesce(duplicate, 0) as duplicate,
    coalesce(surplus, 0) as surplus,
    coalesce(suspected, 0) as suspected,
    coalesce(staged, 0) as staged,
    coalesce(settled, 0) as settled,
    coalesce(messages, 0) as messages,
    coalesce(classified, 0) as classified,
    coalesce(waiting, 0) as waiting,
    coalesce(held, 0) as held,
    coalesce(sending, 0) as sending,
    coalesce(sent, 0) as sent,
    coalesce(unknown, 0) as unknown,
    coalesce(presumed, 0) as presumed,
    coalesce(confirmed, 0) as confirmed,
    coalesce(suppressed, 0) as suppressed,
    coalesce(to_review, 0) as to_review,
    coalesce(escalated, 0) as escalated,
    coalesce(restoring, 0) as restoring,
    coalesce(restore_unknown, 0) as restore_unknown,
    coalesce(discarded, 0) as discarded,
    coalesce(expired, 0) as expired,
    coalesce(recorded, 0) - coalesce(new + returned + duplicate + surplus + suspected + staged, 0)
        as copies_difference,
    coalesce(new, 0) - coalesce(messages, 0) as messages_difference,
    case when coalesce(settled, 0) > coalesce(recorded, 0) then settled - recorded else 0 end as settled_difference
from routes
left join batches on batches.route = routes.route
left join states on states.route = routes.route

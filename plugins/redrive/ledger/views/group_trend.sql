-- When does a group happen? Of each group per day, in UTC: how many messages died (see cause_trend), how many sends of ours
-- went out, and how many of these failed again.
create view group_trend as
with happened as (
    select
        route,
        group_id,
        -- not after it was drained, whatever clock says so
        {day: coalesce(
            dead_lettered_at,
            case when first_enqueued_at > received_at then received_at else first_enqueued_at end,
            changed_at
        )} as day,
        1 as died,
        0 as sent_again,
        0 as came_back
    from messages
    where group_id is not null
    union all
    select
        route,
        group_id,
        {day: sent_at} as day,
        0 as died,
        1 as sent_again,
        case
            when outcome = 'returned' and coalesce(return_kind, 'dead_letter') = 'dead_letter' then 1 else 0
        end as came_back
    from redelivery_attempts
    where sent_at is not null and group_id is not null
)

select
    route,
    group_id,
    day,
    sum(died) as died,
    sum(sent_again) as sent_again,
    sum(came_back) as came_back
from happened
group by route, group_id, day

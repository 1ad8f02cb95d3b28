#!/usr/bin/env escript
%%! +S 2
%% The appends of append_opponents.py, asked of DETS: as many processes as there are conversations
%% insert 600 bytes and sync before the next. Prints "wall_s cpu_s".
-mode(compile).

main([Tasks, Appends]) ->
    {ok, log} = dets:open_file(log, [{file, "append.dets"}, {type, set}, {auto_save, infinity}]),
    Count = list_to_integer(Tasks),
    Each = max(1, list_to_integer(Appends) div Count),
    Body = binary:copy(<<"x">>, 600),
    erlang:garbage_collect(),
    {Cpu0, _} = statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    Workers = [spawn_monitor(fun() -> converse(Number, Each, Body) end)
               || Number <- lists:seq(1, Count)],
    [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Workers],
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = statistics(runtime),
    dets:close(log),
    io:format("~f ~f~n", [Wall / 1.0e9, (Cpu - Cpu0) / 1.0e3]).

converse(Number, Each, Body) ->
    [begin
         ok = dets:insert(log, {{Number, Seq}, Body}),
         ok = dets:sync(log)
     end || Seq <- lists:seq(1, Each)].
